"""Where a decoder's time goes: nsys.sh, ncu.sh, and `torch_profile` without them."""
