"""The definitions of tf-dist's kinds, from which the templates of the Helm chart are generated."""
