"""The models' files on the disk: fetched, checked piece by piece, mended, removed. Loads no model.

The server takes from here only what it needs of it: what is known to be damaged, and the pieces it offers.
"""
