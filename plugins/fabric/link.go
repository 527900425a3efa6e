package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// link is what mlxlink said of one device.
type link struct {
	Device string `json:"device"`
	Active bool   `json:"active"`
	FEC    string `json:"fec"`
	// Effective, Symbol and Raw are rates of bit errors: after correction, of symbols, before correction; nil if the report does not have it.
	Effective *float64 `json:"effective,omitempty"`
	Symbol    *float64 `json:"symbol,omitempty"`
	Raw       *float64 `json:"raw,omitempty"`
	// Advice is mlxlink's own recommendation.
	Advice string        `json:"advice,omitempty"`
	Age    time.Duration `json:"age"`
}

func (r *reader) readLinks(ctx context.Context, s *snapshot) {
	entries, err := os.ReadDir(r.mlxlink)
	if err != nil {
		s.notRead("mlxlink", err)
		return
	}
	for _, entry := range entries {
		file := filepath.Join(r.mlxlink, entry.Name())
		device := strings.TrimSuffix(entry.Name(), filepath.Ext(entry.Name()))
		data, err := r.file(ctx, file)
		var l link
		if err == nil {
			l, err = parseLink(string(data))
		}
		info, statErr := entry.Info()
		if err == nil {
			err = statErr
		}
		if err != nil {
			s.notRead("link "+device, err)
			continue
		}
		l.Device, l.Age = device, time.Since(info.ModTime())
		s.Links = append(s.Links, l)
	}
}

// parseLink reads lines like "Effective Physical BER : 15E-255" of `mlxlink -c`, which are coloured on a terminal.
func parseLink(report string) (l link, err error) {
	words := map[string]string{}
	for line := range strings.Lines(report) {
		if key, value, found := strings.Cut(line, ":"); found {
			words[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	state, known := words["State"]
	if !known {
		return l, fmt.Errorf("no report of mlxlink: %.60q", report)
	}
	l = link{Active: state == "Active", FEC: words["FEC"], Advice: words["Recommendation"]}
	for key, to := range map[string]**float64{"Effective Physical BER": &l.Effective, "Symbol BER": &l.Symbol, "Raw Physical BER": &l.Raw} {
		text, known := words[key]
		if !known || text == "N/A" || text == "" {
			continue
		}
		ber, err := strconv.ParseFloat(text, 64)
		if err != nil || !(ber >= 0 && ber <= 1) {
			return l, fmt.Errorf("%s is %.40q", key, text)
		}
		*to = &ber
	}
	if l.Active && l.Effective == nil && l.Symbol == nil && l.Raw == nil {
		return l, fmt.Errorf("no rate of bit errors in the report: mlxlink needs -c")
	}
	return l, nil
}
