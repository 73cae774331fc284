// A member by sarama: a goroutine for each partition, which commits when nothing more is there and when it ends.
//
//	sarama BROKERS GROUP TOPIC ASSIGNOR
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/IBM/sarama"
)

var mutex sync.Mutex

func write(what string, event map[string]any) {
	mutex.Lock()
	defer mutex.Unlock()
	event["what"] = what
	event["t"] = float64(time.Now().UnixNano()) / 1e9
	line, _ := json.Marshal(event)
	fmt.Println(string(line))
}

type handler struct {
	topic  string
	errors *atomic.Int64
}

func (h handler) turn(what string, session sarama.ConsumerGroupSession) error {
	if partitions := session.Claims()[h.topic]; len(partitions) > 0 {
		write(what, map[string]any{"partitions": partitions})
	}
	return nil
}

func (h handler) Setup(session sarama.ConsumerGroupSession) error { return h.turn("own", session) }
func (h handler) Cleanup(session sarama.ConsumerGroupSession) error {
	return h.turn("revoked", session)
}

func (h handler) ConsumeClaim(session sarama.ConsumerGroupSession, claim sarama.ConsumerGroupClaim) error {
	next := int64(-1)
	commit := func() {
		if next < 0 {
			return
		}
		before := h.errors.Load()
		session.Commit()
		what := "commit"
		if h.errors.Load() != before {
			what = "refused"
		}
		write(what, map[string]any{"offsets": map[string]int64{fmt.Sprint(claim.Partition()): next}})
		next = -1
	}
	defer commit()
	for {
		select {
		case message, open := <-claim.Messages():
			if !open {
				return nil
			}
			now := float64(time.Now().UnixNano()) / 1e9
			write("did", map[string]any{"partition": message.Partition, "offset": message.Offset, "from": now})
			session.MarkMessage(message, "")
			next = message.Offset + 1
			if len(claim.Messages()) == 0 {
				commit()
			}
		case <-session.Context().Done():
			return nil
		}
	}
}

func main() {
	brokers, group, topic, assignor := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	strategies := map[string]sarama.BalanceStrategy{
		"range":      sarama.NewBalanceStrategyRange(),
		"roundrobin": sarama.NewBalanceStrategyRoundRobin(),
		"sticky":     sarama.NewBalanceStrategySticky(),
	}
	sarama.Logger = log.New(os.Stderr, "sarama ", log.LstdFlags|log.Lmicroseconds)
	config := sarama.NewConfig()
	config.Version = sarama.V2_0_0_0
	config.Consumer.Group.Rebalance.GroupStrategies = []sarama.BalanceStrategy{strategies[assignor]}
	config.Consumer.Group.Session.Timeout = 6 * time.Second
	config.Consumer.Group.Heartbeat.Interval = 300 * time.Millisecond
	config.Consumer.Group.Rebalance.Timeout = 60 * time.Second
	config.Consumer.Offsets.Initial = sarama.OffsetOldest
	config.Consumer.Offsets.AutoCommit.Enable = false
	config.Consumer.MaxWaitTime = 100 * time.Millisecond
	config.Consumer.Return.Errors = true
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	consumer, err := sarama.NewConsumerGroup(strings.Split(brokers, ","), group, config)
	if err != nil {
		panic(err)
	}
	var errors atomic.Int64
	go func() {
		for err := range consumer.Errors() {
			errors.Add(1)
			log.Println("error:", err)
		}
	}()
	write("joined", map[string]any{})
	for ctx.Err() == nil {
		if err := consumer.Consume(ctx, []string{topic}, handler{topic, &errors}); err != nil {
			log.Println("consuming:", err)
			time.Sleep(100 * time.Millisecond)
		}
	}
	if err := consumer.Close(); err != nil {
		log.Println("closing:", err)
	}
	write("left", map[string]any{})
}
