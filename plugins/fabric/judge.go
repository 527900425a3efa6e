package main

import (
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

type limits struct {
	plugin   *npd.Plugin
	maxAge   time.Duration
	ber, raw float64
}

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "nothing is known to slow the fabric down"}
	booting := s.Boot.Uptime < l.plugin.Grace
	for _, name := range s.Missing {
		result.Absent(booting, conditions.Inspect, "module "+name, "not loaded")
	}
	if s.Closed && !s.Peermem && len(s.GPUs) > 0 && len(s.Adapters) > 0 {
		// Without it the closed driver cannot give its memory to adapters; whether a workload wants that is not known.
		result.Absent(booting, conditions.Monitor, "module nvidia_peermem", "not loaded, so that GPUDirect RDMA cannot work with this driver")
	}
	for _, port := range s.Redirects {
		result.Found(conditions.Inspect, "pci "+port,
			"access control (ACS) of this switch port sends the traffic of GPUs or adapters through the CPU")
	}
	if len(s.Translated) > 0 {
		result.Found(conditions.Monitor, "iommu", "translates the traffic of GPUs, which slows GPUDirect down (iommu=pt does not)")
	}
	for name, c := range s.EFA {
		if c.Since(s.Boot.Uptime-efaWindow) > 0 {
			device, counter, _ := strings.Cut(name, " ")
			result.Found(conditions.Monitor, "efa "+device, counter+" grew within the last hour")
		}
	}
	for _, k := range s.Links {
		l.link(k, &result)
	}
	for _, u := range s.Unread {
		result.NotRead(u.Subject, u.Why)
	}
	result.Unshared(s.Unkept)
	return result
}

func (l *limits) link(k link, result *npd.Result) {
	over := func(ber *float64, limit float64) bool { return ber != nil && *ber > limit }
	subject := "link " + k.Device
	switch {
	case k.Age > l.maxAge:
		result.NotRead(subject, "the report of mlxlink is too old")
	case !k.Active: // hca judges the state
	case over(k.Effective, l.ber):
		result.Found(conditions.Inspect, subject, "too many bit errors after error correction (effective BER)")
	case over(k.Symbol, l.ber):
		result.Found(conditions.Inspect, subject, "too many symbol errors after error correction (symbol BER)")
	case k.FEC == "No FEC" && over(k.Raw, l.ber):
		result.Found(conditions.Inspect, subject, "too many bit errors on a link without error correction (raw BER)")
	case strings.Contains(k.FEC, "544") && over(k.Raw, l.raw):
		result.Found(conditions.Inspect, subject, "more bit errors than RS(544,514) is made to correct (raw BER)")
	}
	if k.Active && k.Age <= l.maxAge && k.Advice != "" && k.Advice != "N/A" && !strings.HasPrefix(k.Advice, "No issue was observed") {
		result.Found(conditions.Monitor, subject, "mlxlink says: "+k.Advice)
	}
}
