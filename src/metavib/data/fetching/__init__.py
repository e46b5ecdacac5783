"""Published datasets brought onto this machine: downloaded, checked, unpacked, whole or absent."""
