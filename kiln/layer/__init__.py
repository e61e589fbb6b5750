"""Layers: from trees and wheels to compressed blobs, and what Debian's scripts would have made."""
