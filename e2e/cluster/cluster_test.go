package cluster

import (
	"os"
	"testing"
)

func TestAClusterStartsAndLeavesNothingBehind(t *testing.T) {
	c, err := Start(t.Context(), Options{Progress: os.Stderr, JobSet: true})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	out, err := c.Kubectl(t.Context(), "get", "pods,nodes,crd", "-A", "-o", "wide")
	t.Log(out, err)
}
