package main

import (
	"testing"
)

func TestEveryCommandOnThePagesIsOne(t *testing.T) {
	t.Setenv("HOLDFAST_STATE_DIR", t.TempDir())
	for _, page := range everyPage(t) {
		for _, c := range commands(read(t, page)) {
			if err := tryCommand(c); err != nil {
				t.Errorf("%s: %s: %v", page, c, err)
			}
		}
	}
}
