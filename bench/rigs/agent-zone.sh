# the same with a replay zone
AGENT_ZONE='agent_replay_zone runs:512m;'
. "$KIT/rigs/agent.sh"
RIG_DESC="ngx_agent_module with a replay zone, 1 worker"
