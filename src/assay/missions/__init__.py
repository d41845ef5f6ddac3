"""One folder per published result: `model` (definitions), `algorithm` (what is run), `claims` (theorems)."""
