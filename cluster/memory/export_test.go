package memory

// Move is move, for tests that fill every field.
var Move = move
