"""Drawing for a terminal: charts, bars, progress and the picture of the GPUs."""
