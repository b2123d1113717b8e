"""Networks as researchers write them: what matters happens in `forward`, between the modules."""
