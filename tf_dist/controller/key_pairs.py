"""Key pairs for jobs whose pods reach each other over SSH."""

from __future__ import annotations

from typing import Final

from tf_dist.core.podbuilder.ssh_plugin import KeyPair

_BITS: Final = 2048  # as Volcano's plugin has them


def generate_key_pair() -> KeyPair:
    """A new RSA pair, in the formats that Volcano's plugin writes. Takes about a tenth of a second."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=_BITS)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.TraditionalOpenSSL, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return KeyPair(private.decode(), public.decode() + "\n")
