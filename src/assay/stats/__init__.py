"""Anytime-valid statistics: evidence against a null that may be looked at whenever one likes."""
