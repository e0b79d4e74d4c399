"""What a person sees: pages that fit, tables, marks, and text that is safe to print."""
