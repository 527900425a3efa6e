package main

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
)

// Rank 0 may go away before it has ended the run. The others report what they know.
func TestARunWithoutItsEndIsReported(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		var h hello
		_ = json.NewDecoder(conn).Decode(&h)
		_ = json.NewEncoder(conn).Encode(order{Run: "r"})
		conn.Close()
		l.Close()
	}()
	folder := t.TempDir()
	t.Setenv("POD_NAMESPACE", "n")
	t.Setenv("WORKLOAD", "w")
	o, err := parse([]string{"-rank", "1", "-size", "3", "-leader", "127.0.0.1", "-port", fmt.Sprint(l.Addr().(*net.TCPAddr).Port), "-node", "n",
		"-meet-timeout", "20s", "-out", folder}, os.Getenv)
	if err != nil {
		t.Fatal(err)
	}
	if code, err := run(t.Context(), o); code != exitUnknown || err == nil {
		t.Errorf("code %d, %v", code, err)
	}
	if _, err := os.Stat(filepath.Join(folder, "n", "w-1.json")); err != nil {
		t.Error(err)
	}
}
