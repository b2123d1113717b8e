"""Networks of libraries and public repositories: built, fed, trained for a few steps, printed as texts."""
