"""Images: config and manifest by the OCI image spec, and the graph that makes one."""
