"""What every room may use: errors, files, what is kept on disk, printing, processes and threads."""
