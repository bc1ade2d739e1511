"""`etude pick`: text, labels and minutes in, the best model out."""
