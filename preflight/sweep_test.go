package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

func TestTheResultOfASweep(t *testing.T) {
	for name, tt := range map[string]struct {
		code int
		err  error
		want repairresult.Kind
	}{
		"healthy":                       {exitOK, nil, repairresult.Healthy},
		"this node is bad":              {exitNodeBad, nil, repairresult.Problem},
		"a run that was ended":          {exitUnknown, errors.New("connection reset"), repairresult.Failed},
		"and this node fails its check": {exitNodeBad, errors.New("connection reset"), repairresult.Failed},
		"unknown":                       {exitUnknown, nil, repairresult.Failed},
	} {
		if got := resultOf(options{}, tt.code, tt.err); got.Result != tt.want || got.Message == "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// A sweep may be ended at any time: rank 0 goes away before it has ended the run. A job's preflight reports what it knows, a sweep's nothing.
func TestASweepThatWasEndedReportsNothing(t *testing.T) {
	for _, log := range []string{"", "log"} {
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
			"-meet-timeout", "20s", "-out", folder, "-termination-log", log}, os.Getenv)
		if err != nil {
			t.Fatal(err)
		}
		if code, err := run(t.Context(), o); code != exitUnknown || err == nil {
			t.Errorf("code %d, %v", code, err)
		}
		_, err = os.Stat(filepath.Join(folder, "n", "w-1.json"))
		if wrote := err == nil; wrote != (log == "") {
			t.Errorf("-termination-log=%q: a report is written: %t", log, wrote)
		}
	}
}

// The whole program: its exit code and its termination message are those that the remediator reads.
func TestASweepEndsAsTheProgramRepairDoes(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(log, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	before := os.Args
	defer func() { os.Args = before }()
	begun := time.Now()
	os.Args = []string{"preflight", "-rank=1", "-size=3", "-leader=127.0.0.1", "-port=1", "-node=n", "-meet-timeout=300ms", "-termination-log=" + log}
	code := start()
	message, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := repairresult.Parse(string(message)); err != nil || r.Result != repairresult.Failed || code != r.Result.ExitCode() {
		t.Errorf("exit %d after %s, %s, %v", code, time.Since(begun), message, err)
	}
}
