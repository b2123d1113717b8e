"""What the tests of several rooms share."""
