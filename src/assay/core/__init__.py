"""The nouns: numbers, claims, verdicts, certificates, the catalogue.  Standard library only."""
