"""``lockstep erase``: proves that nothing is kept of a deleted row, or says where it is, why and until when."""
