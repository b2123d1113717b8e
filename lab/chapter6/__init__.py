"""The dissertation's chapter 6 on traces of our own: its tables and figures, published beside simulated."""
