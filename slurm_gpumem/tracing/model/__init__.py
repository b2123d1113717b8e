"""From the name of a user's model code to a traced summary, by a training script around it.

request.trace_code (parent) → script.run → training.main (in the traced process)
"""
