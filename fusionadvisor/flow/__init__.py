"""Which op produced what which op read: the data flow of one run."""
