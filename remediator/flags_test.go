package main

import "testing"

func TestPreflightNamespacesAreNames(t *testing.T) {
	for name, good := range map[string]bool{"team-a": true, "7": true, "team a": false, "Team": false, "a.b": false, "": false} {
		if err := checkNamespace(name); (err == nil) != good {
			t.Errorf("%q: %v", name, err)
		}
	}
}
