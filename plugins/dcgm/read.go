package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// snapshot is all that the judge needs.
type snapshot struct {
	NoGPU bool `json:"noGPU,omitempty"`
	// HealthOnly reports that no report is judged, only Incidents.
	HealthOnly bool `json:"healthOnly,omitempty"`
	// Report is the last one of this boot, nil if there is none.
	Report *report `json:"report,omitempty"`
	TooOld bool    `json:"tooOld,omitempty"`
	// Incidents are what the host engine's health watches have seen.
	Incidents []incident `json:"incidents,omitempty"`
	// Unread is which of the two could not be read, if only one could.
	Unread []npd.Unread `json:"unread,omitempty"`
}

type reader struct {
	plugin *npd.Plugin
	source nvml.Source

	report, run, whenIdle, health, force bool
	interval, maxAge, idleFor            time.Duration
	level                                int
	hostengine, dcgmi, tests             string
	root, libraries, nvvs, procfs        string
	podResources                         string
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	if err := r.check(); err != nil {
		return snapshot{}, err
	}
	bus, err := gpu.ReadBus(r.source.Sysfs)
	if err != nil {
		return snapshot{}, err
	}
	if len(bus) == 0 {
		return snapshot{NoGPU: true}, nil
	}
	s := snapshot{HealthOnly: !r.report}
	if r.report {
		if s.Report, err = r.lastReport(ctx); err != nil && !r.health {
			return snapshot{}, err
		}
		s.notRead("diag", err)
		s.TooOld = s.Report != nil && r.maxAge > 0 && time.Since(s.Report.At) > r.maxAge
	}
	if r.health {
		if s.Incidents, err = bounded.Do(ctx, &bounded.Calls{}, "health watches", r.watches); err != nil && !r.report {
			return snapshot{}, err
		}
		s.notRead("health watches", err)
	}
	return s, nil
}

func (s *snapshot) notRead(subject string, err error) {
	if err != nil {
		s.Unread = append(s.Unread, npd.Unread{Subject: subject, Why: err.Error()})
	}
}

// lastReport returns the last report of this boot, nil if there is none. With -run, or with -run-when-idle on an idle node,
// that is the report of a diagnostic that it runs.
func (r *reader) lastReport(ctx context.Context) (*report, error) {
	bootID, err := boot.ID(npd.Proc)
	if err != nil {
		return nil, err
	}
	last, err := r.load(bootID)
	if err != nil {
		return nil, err
	}
	due := r.run || r.whenIdle && (last == nil || last.BootID == "" || time.Since(last.At) >= r.interval)
	if !due {
		return last, nil
	}
	why, err := r.refuse(ctx)
	switch {
	case err != nil:
		return nil, err
	case why == "":
		return r.diagnose(ctx, bootID)
	case r.run:
		return nil, errors.New("no diag: " + why)
	}
	slog.Info("no diagnostic runs", "why", why)
	return last, nil
}

func (r *reader) path() string { return filepath.Join(r.plugin.StateDir, "dcgm-report.json") }

// load returns the last report, nil if there is none or if it is another boot's: the state directory may outlive a boot.
// One that cannot be read is an error: it may have been a fault.
func (r *reader) load(bootID string) (*report, error) {
	data, err := os.ReadFile(r.path())
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var last report
	if err := json.Unmarshal(data, &last); err != nil {
		return nil, fmt.Errorf("%s: %w", r.path(), err)
	}
	if last.BootID != "" && last.BootID != bootID {
		return nil, nil
	}
	return &last, nil
}

// diagnose runs the diagnostics and writes the report. When the run fails, the last report stays.
func (r *reader) diagnose(ctx context.Context, bootID string) (*report, error) {
	now := report{BootID: bootID, At: time.Now().UTC().Truncate(time.Second), Level: r.level, Tests: r.tests}
	var err error
	if r.dcgmi != "" {
		now.Results, now.Isolate, err = r.runDcgmi(ctx)
	} else {
		now.Results, err = r.runEngine()
	}
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(now)
	if err != nil {
		return nil, err
	}
	// Renamed into place: a check that runs meanwhile sees the last report or this one.
	part := r.path() + ".part"
	if err := os.WriteFile(part, data, 0o644); err != nil {
		return nil, err
	}
	return &now, os.Rename(part, r.path())
}
