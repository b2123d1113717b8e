"""What `forward` of classes of known libraries does between its layers, where no row shows it."""
