"""``lockstep erase``: proves that nothing of a deleted row is left, or says where it is, why and until when."""
