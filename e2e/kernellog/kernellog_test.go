package kernellog

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// As root with nft all three ways must work; a machine without them still has the FIFO.
func TestARecordArrivesWithTheFacilityThatItsOriginHas(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "kmsg")
	tests := []struct {
		name     string
		open     func() (*Log, error)
		root     bool
		path     string
		facility int
	}{
		{"nftables", OpenNFT, true, "/dev/kmsg", 0},
		{"user space", OpenKmsg, true, "/dev/kmsg", 1},
		{"FIFO", func() (*Log, error) { return OpenFIFO(fifo) }, false, fifo, 0},
	}
	for _, tt := range tests {
		if tt.root && os.Geteuid() != 0 {
			continue
		}
		t.Run(tt.name, func(t *testing.T) {
			log, err := tt.open()
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { log.Close() })
			before, settingErr := setting()
			for range 3 {
				if got := written(t, log, tt.path); got.Facility != tt.facility {
					t.Errorf("facility %d, want %d", got.Facility, tt.facility)
				}
			}
			if log.Kernel != (tt.facility == 0 && tt.path == "/dev/kmsg") {
				t.Errorf("Kernel = %v", log.Kernel)
			}
			if marked := strings.Contains(log.How, "marked (injected)"); marked != (tt.facility != 0) {
				t.Errorf("facility %d, but %q", tt.facility, log.How)
			}
			after, _ := setting()
			if diff := cmp.Diff(before, after); diff != "" || settingErr != nil && tt.root {
				t.Errorf("%s before and after (%v): %s", allNamespaces, settingErr, diff)
			}
		})
	}
}

func TestALineThatCannotBeWrittenWholeIsRefused(t *testing.T) {
	log, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	if _, err := log.Write(t.Context(), strings.Repeat("x", MaxLine+1)); err == nil {
		t.Error("no error")
	}
}

// setting is the kernel's, when no other test has changed it for a moment.
func setting() (string, error) {
	unlock, err := lockSetting()
	if err != nil {
		return "", err
	}
	defer unlock()
	text, err := os.ReadFile(allNamespaces)
	return string(text), err
}

// written writes a line and returns its record. It writes again if that is not found: another test may flood the log.
func written(t *testing.T, log *Log, path string) kmsg.Record {
	t.Helper()
	for range 20 {
		line := fmt.Sprintf("pitcrew kernellog test %d: 100 percent", time.Now().UnixNano())
		if _, err := log.Write(t.Context(), line); err != nil {
			t.Fatal(err)
		}
		if rec, found := find(t, path, line); found {
			return rec
		}
	}
	t.Fatalf("no record in %s", path)
	return kmsg.Record{}
}

// find waits some seconds for the record whose body starts with line.
func find(t *testing.T, path, line string) (rec kmsg.Record, found bool) {
	t.Helper()
	r, err := kmsg.Open(path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for {
		rec, err := r.Next()
		if err == nil && strings.HasPrefix(rec.Body, line) {
			return rec, true
		}
		if err != nil && r.Wait(ctx) != nil {
			return rec, false
		}
	}
}
