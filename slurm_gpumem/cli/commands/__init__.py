"""The subcommands of `gpumem`, one file each."""
