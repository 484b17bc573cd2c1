// Nothing besides W and x.
