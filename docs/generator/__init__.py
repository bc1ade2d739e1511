"""What the site is made of beside its pages: references from the code, pictures, files outside docs/."""
