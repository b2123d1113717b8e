"""`gpumem collect`: records from the spool into books, and what is new of them into the index."""
