"""What people write: pins.yaml, recipes, components; read with positions, checked as a whole."""
