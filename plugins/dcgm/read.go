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

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// snapshot is all that the judge needs.
type snapshot struct {
	NoGPU bool `json:"noGPU,omitempty"`
	// Report is the last one of this boot, nil if there is none.
	Report *report `json:"report,omitempty"`
	TooOld bool    `json:"tooOld,omitempty"`
	// Incidents are what the host engine's health watches have seen.
	Incidents []incident `json:"incidents,omitempty"`
}

type reader struct {
	plugin *npd.Plugin
	source nvml.Source

	report, run, whenIdle, health, force bool
	interval, maxAge, idleFor            time.Duration
	level                                int
	hostengine, dcgmi, tests             string
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
	last, err := r.load()
	if err != nil {
		return snapshot{}, err
	}
	due := r.run || r.whenIdle && (last == nil || time.Since(last.At) >= r.interval)
	if due {
		why, err := r.refuse(ctx)
		if err != nil {
			return snapshot{}, err
		}
		switch {
		case why == "":
			if last, err = r.diagnose(ctx); err != nil {
				return snapshot{}, err
			}
		case r.run:
			return snapshot{}, errors.New("no diag: " + why)
		default:
			slog.Info("no diag", "why", why)
		}
	}
	s := snapshot{Report: last}
	s.TooOld = last != nil && r.maxAge > 0 && time.Since(last.At) > r.maxAge
	if r.health {
		if s.Incidents, err = r.watches(); err != nil {
			return snapshot{}, err
		}
	}
	return s, nil
}

func (r *reader) path() string { return filepath.Join(r.plugin.StateDir, "dcgm-report.json") }

// load returns the last report, nil if there is none. One that cannot be read is an error: it may have been a fault.
func (r *reader) load() (*report, error) {
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
	return &last, nil
}

// diagnose runs the diagnostics and writes the report. When it comes to nothing, the last report stays.
func (r *reader) diagnose(ctx context.Context) (*report, error) {
	now := report{At: time.Now().UTC().Truncate(time.Second), Level: r.level, Tests: r.tests}
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
