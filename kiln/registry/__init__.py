"""Where images go and come from: a registry over HTTP, or an OCI layout folder."""
