"""A stand-in for the vendor's rknn-toolkit-lite2, which is closed and for aarch64 only. See api."""
