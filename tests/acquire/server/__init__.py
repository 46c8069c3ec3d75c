"""A server of HTTP and HTTPS on loopback that misbehaves on demand."""
