"""``lockstep rejections``: events that a sink refused for good, listed, retried and given up."""
