"""What crosses processes: each format a frozen, versioned type with one reader and one writer."""
