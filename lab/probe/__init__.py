"""Single operators measured on a GPU, and their traces held against them."""
