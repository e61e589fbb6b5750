"""Starting images, and talking to the servers inside: runners, client, archives."""
