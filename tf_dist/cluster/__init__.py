"""Everything that touches a cluster: the protocol, the REST client, the embedded API server and the kubelet."""
