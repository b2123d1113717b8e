"""The peak of a traced step explained: what lived then, over time, and what would lower it."""
