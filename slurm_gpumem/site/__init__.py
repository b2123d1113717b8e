"""An admin's side: generate a site's configuration (setup) and check a live cluster (doctor)."""
