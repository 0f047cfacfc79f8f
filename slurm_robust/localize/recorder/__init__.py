"""What PyTorch's flight recorder knows: which rank joined which operation of which process group."""
