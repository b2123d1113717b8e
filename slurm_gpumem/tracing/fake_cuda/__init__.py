"""What torch.cuda and the packages around it answer a script that is traced without a GPU."""
